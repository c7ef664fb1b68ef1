/** The dialog in which the note of a run or a task instance is written, or removed. */
import { t } from '../strings'
import { Form } from './Form'

export function NoteForm({ note, save, onClose }: { note: string | null; save: (note: string | null) => Promise<unknown>; onClose: () => void }) {
  return (
    <Form
      title={t.run.note}
      inputs={[{ name: 'note', label: t.run.note, most: 1000, hint: t.run.noteHint }]}
      values={{ note: note ?? '' }}
      save={(values) => save(values['note']?.trim() || null)}
      onClose={onClose}
    />
  )
}
